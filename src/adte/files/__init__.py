"""What is read and written: whole files, state files; inputs, outputs, claims on them, resuming.

whole     files written whole or not at all, links and devices respected
devices   pipes, devices and standard output
locks     of a file, kept beside it
states    what was learned: tensors with facts beside them
claims    who may write a file: checked before any work
written   the reports and tables that this user's adte wrote
inputs    images from files, folders, archives and standard input
lists     of files, of class names, of templates, as a person writes them
tars      the members of a tar, all of them or an error
rows      predictions as lines of CSV or JSON
journal   rows as they come, and how far a state covers them, so that a run goes on exactly
order     of the work, and back from it
console   tables, bars, progress and JSON for the command line
"""

from adte.files.whole import make_folder, write_whole

__all__ = ["make_folder", "write_whole"]
