from adte.cli import main

main()
