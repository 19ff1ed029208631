// Package verify judges a recorded history: did the server keep its promises?
//
// [Load] reads what a load test or a drill recorded (see package history) into a
// compact form; [Judge] runs every invariant over it and returns a [Report].
// Each invariant is one function in a file named after its subject. The judge
// is judged by [Mutate], which corrupts a good history in each way an invariant
// forbids and asks whether that invariant notices.
//
// Almost everything is one sort and one pass, so that two million records take
// seconds. A history that holds nothing to judge is an error, never a pass.
package verify
