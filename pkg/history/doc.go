// Package history records what simulated devices did and saw while a server was
// under load and under faults, one JSON object a line, so that a judge can say
// afterwards whether the server kept its promises.
//
// A folder holds these files; all times are nanoseconds of the recorder's
// monotonic clock:
//
//	run.json         what was run: seed, versions, when the faults ended
//	client-N.ops     sends: invoke and return
//	client-N.view    what a device showed, and its connections
//	faults.log       each fault's start and stop
//	db.final         the log after everything had healed: the ground truth
//	members.final    who may see what of it
package history
