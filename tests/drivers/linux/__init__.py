"""Tests of the linux driver: disks are files, /sys is a folder; loop devices where root has them."""
