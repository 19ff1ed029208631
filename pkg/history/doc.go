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
//
// and, if the control plane was looked at too:
//
//	control.log      what was done to nodes and to etcd, and settings that were written
//	node-N.log       what a node saw of all that
//	leader.log       claims and effects of leaders, in the order in which the store decided
//	ids.log          ids that nodes made
//
// and, if it was looked at who is where:
//
//	sessions.log     logins of users of whom only one may be in, and their ends
//	routes.log       calls to a route store
//	presence.log     who was seen online
//
// and, if it was looked at what leaders do for others:
//
//	effects.log      what receivers were told, and what became of scheduled messages
//	                 and of announcements
//
// What a recorder owes the judge:
//
//   - An Invoke carries a time from before the send leaves, a Return one from
//     after the answer arrived: an interval too short makes a good server look
//     bad.
//   - The records of a device count in order of time, those of one time in the
//     order of the file.
//   - A device that is online when the run ends records Settled after the last
//     fault, or it counts as left behind. Open is written once for each life of
//     a conversation on a device, Have whenever the device connects again; without
//     an Open the device begins at nothing.
//   - A receiver that is told of events, or has a Receiver record, is told of all from before
//     the first row, and the run ends when it has been told of the last one, or should have been. The
//     same holds for scheduled messages and announcements.
//   - A Row's Hash and a send's are made by one function, and the Name of a Resync
//     is the data_epoch, if it is known.
package history
