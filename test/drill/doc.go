// Package drill runs short drills with the shipped program: one in every test
// run, and, in builds with the tag drill, one for each defect that a drill must
// notice.
package drill
