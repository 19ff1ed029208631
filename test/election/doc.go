// Package election holds the tests of elections over processes that are killed,
// paused and told to stop, against etcd members and the fence of a message
// store. It has no production code.
//
// The figures come from
//
//	CGO_ENABLED=0 go test -trimpath -run '^$' -bench . -benchtime 30x ./test/election
package election
