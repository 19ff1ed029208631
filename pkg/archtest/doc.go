// Package archtest holds the tests of the rules about who may import whom and
// about documentation. It has no production code.
package archtest
