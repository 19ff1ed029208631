// Package readme walks through README.md: it runs the commands that stand
// there, and compares what they print with what stands there.
package readme
