// Package failpoint lets drills break the server at chosen lines. In a normal
// build every call is an empty function that the compiler removes; with the
// build tag drill the calls look at rules that a drill writes into a file.
//
// # Rules
//
// The environment variable IMD_TEST_POINTS names the file. It is looked at
// twenty times a second, so that rules come and go while the server runs; put a whole
// file in its place, as one that is written may be read in part. Standard error tells
// when it is [InForce]. Each line is one rule:
//
//	POINT ACTION [ARGUMENT] [PROBABILITY]
//	state.before_append sleep 200ms 0.1
//	state.after_append exit
//	store.before_commit error 0.5
//	scheduler.before_effect/gather stop
//	clock shift -1h
//
// Actions: sleep pauses the caller, exit ends the process as a kill would,
// panic panics, stop stops it as SIGSTOP does, once for each text of the file, error makes the operation fail where that is possible and does
// nothing elsewhere. The clock is no point: its only action moves what [Now]
// tells.
//
// # Known-bad builds
//
// IMD_TEST_BAD names one defect that is then switched on: a drill must notice
// it. Which there are is in the list of [Defects].
package failpoint
