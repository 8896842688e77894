"""What the bootable image is made of, and how it is built from Debian's packages and this program.

Begins at `build.py`. What is in the image is said by readable lists in `files/`; nothing of this package is in it.
"""
