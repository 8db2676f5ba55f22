"""What is read and written: whole files, state files; inputs, outputs, claims on them, resuming.

whole     files written whole or not at all, links and devices respected
devices   pipes, devices and standard output
locks     of open files
states    what was learned: tensors with facts beside them
claims    who may write a file: checked before any work, locked while it is used
inputs    images from files, folders, archives and standard input
lists     of files, of class names, of templates, as a person writes them
tars      the members of a tar, all of them or an error
rows      predictions as lines of CSV or JSON
outputs   streamed as they come
ledger    what an output holds already, so that a run goes on exactly
"""

from adte.files.whole import make_folder, write_whole

__all__ = ["make_folder", "write_whole"]
