// Package lane orders what is written to conversations and gathers it into few
// calls to the store: one call of a lane is out at a time, and what arrives
// meanwhile goes into the next. It decides nothing else and touches nothing: a
// Lane is a state machine that is told what happened and says what to do, so
// that it can be driven by goroutines, by tests and by the simulator alike.
package lane
