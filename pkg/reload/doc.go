// Package reload keeps what is read from files, and reads it anew when they
// change: keys and certificates that are renewed while a node runs. What cannot
// be used leaves the last good value in force.
package reload
