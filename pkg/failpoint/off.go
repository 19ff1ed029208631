//go:build !drill

package failpoint

import "time"

// Built reports whether this build has fail points.
const Built = false

// Hit does what the rules say for the point; here nothing.
func Hit(Point) {}

// HitJob does what the rules say for BeforeEffect, in a job; here nothing.
func HitJob(string) {}

// Error is Hit, and the error that the caller should fail with, if any.
func Error(Point) error { return nil }

// Bad reports whether a defect is switched on; here never.
func Bad(Defect) bool { return false }

// Now is the wall clock, as times that are stored and told are taken from it.
func Now() time.Time { return time.Now() }
