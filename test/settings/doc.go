// Package settings changes a running node's settings from outside, while people
// talk.
package settings
