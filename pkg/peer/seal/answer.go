package seal

import (
	"bytes"
	"net/http"
)

// Recorder is a ResponseWriter that keeps an answer until it is whole, so that it
// can be signed.
type Recorder struct {
	w      http.ResponseWriter
	sign   Answer
	status int
	body   bytes.Buffer
}

// NewRecorder keeps the answer that goes to w. Send must follow.
func NewRecorder(w http.ResponseWriter, sign Answer) *Recorder {
	return &Recorder{w: w, sign: sign, status: http.StatusOK}
}

// Header is that of the answer.
func (r *Recorder) Header() http.Header { return r.w.Header() }

// WriteHeader keeps the status.
func (r *Recorder) WriteHeader(status int) { r.status = status }

// Write keeps a part of the body.
func (r *Recorder) Write(p []byte) (int, error) { return r.body.Write(p) }

// Flush does nothing: the answer leaves as a whole.
func (r *Recorder) Flush() {}

// Unwrap is the writer behind, for deadlines.
func (r *Recorder) Unwrap() http.ResponseWriter { return r.w }

// Send signs the answer and sends it.
func (r *Recorder) Send() {
	r.sign(r.status, r.w.Header(), r.body.Bytes())
	r.w.WriteHeader(r.status)
	_, _ = r.w.Write(r.body.Bytes()) // fails only if the caller is gone
}
