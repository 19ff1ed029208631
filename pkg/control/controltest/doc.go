// Package controltest is the conformance suite of the control plane: what every
// driver must do, also when leases vanish, keys are tampered with, and the
// server behind it goes away and comes back.
package controltest
