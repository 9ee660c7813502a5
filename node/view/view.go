// Package view turns the index of an image into a mounted tree whose files are
// found elsewhere when they are opened.
//
// [Compile] writes the flat index of an image as an EROFS image file: all names,
// modes, owners, times and attributes, and for each file that is not empty the
// attributes by which overlayfs finds its data, as ab/cdef... in directories
// that hold nothing but data. [MountImage] mounts that file, once for all
// containers of the image, and [Overlay] puts one overlay for each container
// over it. [Mounts] reads back what is mounted, [Unmount] and [UnmountBelow]
// end it, and [Probe] finds out which of this the kernel can do.
//
// Nothing here runs in the path of a file access, and nothing needs this process
// once a tree is mounted. Mounting needs CAP_SYS_ADMIN. DESIGN.md of gearfs says
// why the tree is built this way.
package view
