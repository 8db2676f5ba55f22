"""What a package adds to adte. Its entry points name the modules; importing one registers."""
