package datadir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/imdhq/imd/pkg/im"
)

// Endpoints say where the node of a folder listens.
type Endpoints struct {
	Node    im.NodeID `json:"node"`
	BootID  string    `json:"boot_id"` // random, new at each start
	PID     int       `json:"pid"`
	Version string    `json:"version"`
	Dev     bool      `json:"dev,omitempty"`
	Started time.Time `json:"started"`
	Public  string    `json:"public,omitempty"` // host:port; "" = none
	// PublicTLS says that Public is spoken to through TLS.
	PublicTLS bool   `json:"public_tls,omitempty"`
	Ops       string `json:"ops,omitempty"`
	Internal  string `json:"internal,omitempty"`
	Audience  string `json:"audience,omitempty"` // of the tokens this node takes
	Issuer    string `json:"issuer,omitempty"`
}

// WriteEndpoints replaces the folder's endpoints.json.
func (d *Dir) WriteEndpoints(e Endpoints) error {
	data, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return fmt.Errorf("endpoints: %w", err)
	}
	return writeFile(d.path, endpointsFile, append(data, '\n'))
}

// RemoveEndpoints says that the node has stopped.
func (d *Dir) RemoveEndpoints() error {
	err := os.Remove(filepath.Join(d.path, endpointsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// ReadEndpoints reads where the node of the folder listens. The error is
// fs.ErrNotExist if none runs. After a crash the file is still there, so the
// addresses may be dead.
func ReadEndpoints(path string) (Endpoints, error) {
	var e Endpoints
	data, err := os.ReadFile(filepath.Join(path, endpointsFile))
	if err != nil {
		return e, err
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return e, fmt.Errorf("%s: %w", filepath.Join(path, endpointsFile), err)
	}
	return e, nil
}
