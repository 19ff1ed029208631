// Package requirements tests from outside what operators and users ask of the
// server, one test for each numbered requirement; docs/requirements.md lists
// them all, with the tests of other packages that prove some.
package requirements
