// Package image runs the binary as the container image would: as an
// unprivileged user, in a root that holds nothing but the binary and cannot be
// written, with one folder for data.
package image
