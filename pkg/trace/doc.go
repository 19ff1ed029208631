// Package trace remembers for a while what became of each message in a process,
// so that the life of one can be told later: when it was stored, handed on,
// queued for a device and acknowledged.
//
// Every role writes a short record at each stage. They lie in one ring, in the
// order in which they were written, bounded in size and age; nothing is written
// anywhere else, and no content is in them. A message is looked for by walking
// the ring, which is rare, so that writing stays cheap.
//
// Before it is stored a message has no id. What happens from then on is known by
// conversation and seq: the first record with the id leads to the others.
//
// For a share of all messages the records also become spans of OpenTelemetry, if
// somebody wants them: see [Log.Export]. The context of a trace travels with the
// message from role to role.
package trace
