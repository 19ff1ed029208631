// Package rules has what every message store decides in the same way, whatever
// it keeps its rows in: what a member sees of a log, what a change does to a
// group, where a client stands in the walk over what changed, and how new users
// are taken in together. It reads and writes nothing itself; a driver brings the
// rows and keeps what comes out.
//
// Visibility. A member sees stretches (start, end] of the log, one for each
// stay, above the border of a cleared history. A group with open history shows
// everything to everyone who is in it, also to those who return.
package rules
