// Package storetest is the suite that every driver of a store passes: what the
// comments of package store promise, each promise as a test. A driver's own
// test calls TestMessages or TestRoutes.
package storetest
