package imd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// DialOptions says how a raw connection is made.
type DialOptions struct {
	// Encoding of the frames; Proto by default.
	Encoding protocol.Encoding
	// HTTPClient makes the upgrade; nil = http.DefaultClient. Its Timeout must
	// be 0.
	HTTPClient *http.Client
	// Header is added to the upgrade, for instance Authorization.
	Header http.Header
}

// Conn is one WebSocket connection that speaks frames and nothing more: no
// hello, no heartbeat, no resume. It is what a Client is built on, and it is
// meant for tests and tools. One goroutine may read while another writes.
type Conn struct {
	ws  *websocket.Conn
	enc protocol.Encoding
}

// DialRaw opens a connection. address is the server's, with the scheme ws, wss,
// http or https; protocol.Path is added unless it is there. A refused upgrade
// is an *Error with its HTTPStatus.
func DialRaw(ctx context.Context, address string, opts DialOptions) (*Conn, error) {
	u, err := parseAddress(address)
	if err != nil {
		return nil, err
	}
	ws, resp, err := websocket.Dial(ctx, u.socket, &websocket.DialOptions{
		HTTPClient:      opts.HTTPClient,
		HTTPHeader:      opts.Header,
		Subprotocols:    []string{opts.Encoding.Subprotocol()},
		CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		return nil, dialError(resp, err)
	}
	if got := ws.Subprotocol(); got != opts.Encoding.Subprotocol() {
		_ = ws.Close(websocket.StatusProtocolError, "subprotocol")
		return nil, fmt.Errorf("imd: the server chose the subprotocol %q", got)
	}
	ws.SetReadLimit(protocol.ClientReadLimit)
	return &Conn{ws: ws, enc: opts.Encoding}, nil
}

// dialError reads what the server said instead of upgrading.
func dialError(resp *http.Response, err error) error {
	if resp == nil || resp.StatusCode == http.StatusSwitchingProtocols {
		return fmt.Errorf("imd: connect: %w", err)
	}
	var body []byte
	if resp.Body != nil {
		body, _ = io.ReadAll(io.LimitReader(resp.Body, 4096))
	}
	return httpError(resp, body)
}

// httpError turns an HTTP answer that is not a success into an Error.
func httpError(resp *http.Response, body []byte) *Error {
	e := &Error{HTTPStatus: resp.StatusCode}
	var wire struct {
		Code, Message string
		Details       []connectDetail
	}
	if json.Unmarshal(body, &wire) == nil && wire.Code != "" {
		e.Code, e.Message = wire.Code, wire.Message
		for _, d := range wire.Details {
			if detail := d.decode(); detail != nil {
				e = fromWire(detail)
				e.HTTPStatus = resp.StatusCode
			}
		}
	} else {
		e.Message = strings.TrimSpace(string(body))
	}
	switch resp.StatusCode {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden:
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusBadGateway, http.StatusGatewayTimeout, http.StatusInternalServerError:
		e.Retryable = true
	}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
		e.RetryAfter = max(e.RetryAfter, time.Duration(seconds)*time.Second)
	}
	return e
}

// Encoding returns how the frames are written.
func (c *Conn) Encoding() protocol.Encoding { return c.enc }

// Read returns the frames of the next envelope, which may be none. After an
// error the connection is of no more use. A close by the server is an *Error
// with its CloseCode; an envelope that cannot be decoded a
// *protocol.FrameError. A context that ends closes the connection.
func (c *Conn) Read(ctx context.Context) ([]*clientv1.ServerFrame, error) {
	typ, data, err := c.ws.Read(ctx)
	if err != nil {
		var ce websocket.CloseError
		if errors.As(err, &ce) {
			return nil, fromClose(int(ce.Code), ce.Reason)
		}
		return nil, fmt.Errorf("imd: read: %w", err)
	}
	if (typ == websocket.MessageText) != (c.enc == protocol.JSON) {
		return nil, &protocol.FrameError{Fault: protocol.BadFrame, Detail: "a message of the wrong type"}
	}
	var frames []*clientv1.ServerFrame
	err = protocol.DecodeServerEnvelope(c.enc, data, protocol.ClientLimits(), func(f *clientv1.ServerFrame) error {
		frames = append(frames, f)
		return nil
	})
	return frames, err
}

// Write sends frames, in one envelope or, if they are too many, in several. A
// context that ends closes the connection.
func (c *Conn) Write(ctx context.Context, frames ...*clientv1.ClientFrame) error {
	var envelope []byte
	count := 0
	flush := func() error {
		if count == 0 {
			return nil
		}
		err := c.WriteEnvelope(ctx, envelope)
		envelope, count = envelope[:0], 0
		return err
	}
	for _, f := range frames {
		before := len(envelope)
		var err error
		if envelope, err = protocol.AppendFrame(envelope, c.enc, f); err != nil {
			return err
		}
		if count++; before > 0 && (len(envelope) > c.enc.MaxEnvelope() || count > protocol.MaxClientFrames) {
			last := append([]byte(nil), envelope[before:]...)
			envelope, count = envelope[:before], count-1
			if err := flush(); err != nil {
				return err
			}
			envelope, count = append(envelope, last...), 1
		}
	}
	return flush()
}

// WriteEnvelope sends bytes as one message, whatever they hold.
func (c *Conn) WriteEnvelope(ctx context.Context, envelope []byte) error {
	typ := websocket.MessageBinary
	if c.enc == protocol.JSON {
		typ = websocket.MessageText
	}
	if err := c.ws.Write(ctx, typ, envelope); err != nil {
		return fmt.Errorf("imd: write: %w", err)
	}
	return nil
}

// Close closes the connection with a code and waits a few seconds for the
// answer.
func (c *Conn) Close(code int, reason string) error {
	return c.ws.Close(websocket.StatusCode(code), reason)
}

// CloseNow drops the connection without a word.
func (c *Conn) CloseNow() error { return c.ws.CloseNow() }

// address is a server in its two forms.
type address struct {
	socket string // of the WebSocket, path included
	base   string // of HTTP calls, without a slash at its end
}

func parseAddress(s string) (address, error) {
	if !strings.Contains(s, "://") {
		s = "ws://" + s
	}
	u, err := url.Parse(s)
	if err != nil {
		return address{}, fmt.Errorf("imd: address: %w", err)
	}
	ws, ok := map[string]string{"ws": "ws", "http": "ws", "wss": "wss", "https": "wss"}[u.Scheme]
	if !ok || u.Host == "" {
		return address{}, fmt.Errorf("imd: address %q: want ws, wss, http or https and a host", s)
	}
	u.RawQuery, u.Fragment, u.User = "", "", nil
	u.Path = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), protocol.Path)
	u.Scheme = strings.Replace(ws, "ws", "http", 1)
	base := u.String()
	u.Scheme = ws
	u.Path += protocol.Path
	return address{socket: u.String(), base: base}, nil
}
