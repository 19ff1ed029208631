// Package admin is the services of the ops listener for operators and the
// command line: the nodes of the cluster and the API keys of the customer's
// backend. Everything here stands behind the admin key of the data folder.
//
// Making and revoking a key is written to the log, without the secret.
//
// Metrics: those of package rpc.
package admin
