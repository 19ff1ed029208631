// Package module says what a part of a node is and runs the parts of one
// process: Spec declares a module, Module is its four-step life, Node starts
// modules in the order of their needs and stops them in reverse.
package module
