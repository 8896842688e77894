"""The agent on a machine that has no system yet: who it is, its network, how it joins, and how it starts what was
installed. Begins at `service.py`; what the bootable image is made of lies in packaging/ramdisk."""
