package etcd

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
)

// saveEvery is the least time between two writes of the list.
const saveEvery = 5 * time.Second

// snapshotFile is the list of nodes on disk, for a start without etcd.
type snapshotFile struct {
	path    string
	cluster string // the name of ours
}

// snapshot is what the file holds.
type snapshot struct {
	Cluster     string         `json:"cluster"`
	EtcdCluster uint64         `json:"etcd_cluster,string"`
	Revision    int64          `json:"revision,string"`
	Saved       time.Time      `json:"saved"`
	Nodes       []control.Node `json:"nodes"`
	// Cordons are the reasons why operators keep work away from nodes.
	Cordons map[im.NodeID]string `json:"cordons,omitempty"`
	// Secret is what nodes show each other.
	Secret string `json:"secret,omitempty"`
}

// snapshotOf is a list without the nodes that have not answered.
func snapshotOf(nodes []control.Node, revision int64, cluster uint64) snapshot {
	s := snapshot{EtcdCluster: cluster, Revision: revision, Saved: time.Now().UTC(), Cordons: map[im.NodeID]string{}}
	for _, n := range nodes {
		if n.Standing == control.Suspect {
			continue
		}
		s.Nodes = append(s.Nodes, n)
		if n.Cordon != "" {
			s.Cordons[n.ID] = n.Cordon
		}
	}
	return s
}

// nodes are those of the list, with the operator's marks.
func (s snapshot) nodes() []control.Node {
	out := make([]control.Node, 0, len(s.Nodes))
	for _, n := range s.Nodes {
		n.Cordon = s.Cordons[n.ID]
		out = append(out, n)
	}
	return out
}

// write replaces the file as a whole.
func (f *snapshotFile) write(s snapshot) error {
	s.Cluster = f.cluster
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	t, err := os.CreateTemp(filepath.Dir(f.path), ".nodes-*")
	if err != nil {
		return err
	}
	defer os.Remove(t.Name()) // gone if it was renamed
	_, err = t.Write(data)
	if err == nil {
		err = t.Sync()
	}
	if cerr := t.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(t.Name(), f.path)
}

// read gives the list. Errors: there is none, it is damaged, or it is that of
// another cluster.
func (f *snapshotFile) read() (snapshot, error) {
	data, err := os.ReadFile(f.path)
	if err != nil {
		return snapshot{}, err
	}
	var s snapshot
	if err := json.Unmarshal(data, &s); err != nil {
		return snapshot{}, fmt.Errorf("%s is damaged: %w", f.path, err)
	}
	if s.Cluster != f.cluster {
		return snapshot{}, fmt.Errorf("%s is of cluster %q", f.path, s.Cluster)
	}
	return s, nil
}
