// Package transfer copies one message store into another of any driver: ids,
// seqs, positions, keys of idempotency and the data_epoch stay, so that clients
// go on where they were and a resend of an old message still finds it.
//
// The copy goes table by table in batches; each is stored in one transaction
// with how far the table has come and with a running sum of its rows. So it can
// be killed at any moment and run again. Before the target is opened to servers
// all of it is read back and compared with the sums. At last the source gets a
// new data_epoch: should somebody start a server on it, its clients will read
// everything anew instead of mixing two histories.
package transfer
