// Package view turns the index of an image into a mounted tree. The contents of the
// tree's files are found elsewhere when the files are opened.
//
// [Compile] writes the flat index of an image as an EROFS image file. It contains all
// names, modes, owners, times and attributes. Each file that is not empty has the
// attributes by which overlayfs finds its data, as ab/cdef... in directories that hold
// only data. [MountImage] mounts the image file once for all containers of the image.
// [Overlay] mounts one overlay over it for each container. [Mounts] returns what is
// mounted, [Unmount] and [UnmountBelow] unmount it, and [Probe] finds out which of these
// features the kernel supports.
//
// Nothing here runs when a file is accessed, and a mounted tree does not need this
// process. Mounting needs CAP_SYS_ADMIN. DESIGN.md of gearfs explains why the tree is
// built this way.
package view
