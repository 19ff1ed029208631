// Package election holds the tests of elections over processes that are killed,
// paused and told to stop, against an etcd server and the fence of a message
// store. It has no production code.
//
// The figures come from
//
//	CGO_ENABLED=0 go test -trimpath ./test/election -v -election.rounds 30
package election
