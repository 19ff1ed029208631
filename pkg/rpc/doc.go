// Package rpc is the server side of Connect over HTTP as this product offers
// it: JSON whose unknown fields are refused, bounded requests, errors that
// always carry an imd.client.v1.Error, no panics that reach net/http, and
// metrics. The public API and the ops services are both built on it.
//
// Metrics: imd_http_requests_total{service,method,code},
// imd_http_request_seconds{service,method}, imd_http_requests_in_flight.
package rpc
