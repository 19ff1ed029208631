// Package settings is what may change while nodes run. A setting is declared
// once, in the module that reads it: key, type, default, range, unit and a
// sentence. Values live in etcd, one document per section (the first part of
// the key), and are the same for the whole cluster except where a document
// overrides them for a zone, a role or a node.
//
// # From a document to a value
//
// State.Step is the pure core. It takes what the driver saw (a full read, the
// changes of one revision, a sign of life) and decides:
//
//	a key's version is not the last one + 1 -> an event is missing: read again
//	everything that is known now is good    -> take all of it
//	only this revision's changes are good   -> take them; what was refused before stays refused
//	else                                    -> take nothing of this revision; say why
//
// So a revision is taken as a whole or not at all, on every node alike: what is
// judged are the documents and the declarations, nothing of the node itself.
// Limits of steps are judged when a change is seen as it happens, not when
// everything is read anew.
//
// Live holds the snapshot in force behind an atomic pointer. Readers never lock
// and never see half of a revision.
//
// # Which value holds
//
// Weakest first: the default of the declaration, the start value of the node
// (file, IMD_* variable, flag), then the settings: for all nodes, for the zone,
// for a role of the node, for the node. A setting wins over a flag, also one
// that was there before the node started.
package settings
