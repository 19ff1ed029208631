package etcd

import (
	"bytes"
	"encoding/json"
	"maps"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
)

// record is one key as it was read.
type record struct {
	create, mod int64 // revisions of its creation and of its last change
	version     int64 // 1 at its creation, then one more with each change
	lease       leaseID
	raw         []byte

	// What a copy of the nodes makes of it:

	kind  recordKind
	node  control.Node // of a recordNode
	order order        // of the others
	ok    bool         // raw could be read
}

// recordKind is what a key below the prefix holds.
type recordKind int

const (
	recordNode   recordKind = iota
	recordCordon            // <node>/cordon: an operator keeps work away
	recordDrain             // <node>/drain: an operator wants the process to stop
)

// order is what an operator wrote for a node.
type order struct {
	Node   im.NodeID `json:"node"`
	BootID string    `json:"boot_id,omitempty"` // of a drain
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

const (
	cordonSuffix = "/cordon" // node ids hold no slash
	drainSuffix  = "/drain"
)

// reader makes a record of a key.
type reader func(*mvccpb.KeyValue) record

// replica is a copy of all records of an area at one revision. It is never
// changed; the methods make new ones.
type replica struct {
	read    reader // nil = plain
	rev     int64
	cluster uint64 // id of the etcd cluster
	history int    // rises when etcd was found with another history; revisions begin anew
	records map[string]record
}

// replicaOf is the copy that a full read gives.
func replicaOf(read reader, rev int64, cluster uint64, kvs []*mvccpb.KeyValue) replica {
	r := replica{read: read, rev: rev, cluster: cluster, records: make(map[string]record, len(kvs))}
	for _, kv := range kvs {
		r.records[string(kv.Key)] = r.parse(kv)
	}
	return r
}

func (r replica) parse(kv *mvccpb.KeyValue) record {
	if r.read == nil {
		return plain(kv)
	}
	return r.read(kv)
}

// plain takes a key as it is.
func plain(kv *mvccpb.KeyValue) record {
	return record{create: kv.CreateRevision, mod: kv.ModRevision, version: kv.Version, lease: kv.Lease, raw: kv.Value, ok: true}
}

// readNode takes a key as what a node or an operator wrote.
func readNode(kv *mvccpb.KeyValue) record {
	r := plain(kv)
	key := string(kv.Key)
	switch {
	case strings.HasSuffix(key, cordonSuffix):
		r.kind = recordCordon
	case strings.HasSuffix(key, drainSuffix):
		r.kind = recordDrain
	default:
		n, err := decode(kv)
		r.node, r.ok = n, err == nil && n.ID != ""
		return r
	}
	r.ok = json.Unmarshal(kv.Value, &r.order) == nil && r.order.Node != ""
	return r
}

// apply takes in the events of one watch answer, which holds whole revisions.
// Events that the copy has already are left out.
func (r replica) apply(events []*clientv3.Event) replica {
	next := r
	next.records = maps.Clone(r.records)
	for _, ev := range events {
		if ev.Kv.ModRevision <= r.rev {
			continue
		}
		next.rev = max(next.rev, ev.Kv.ModRevision)
		if ev.Type == clientv3.EventTypeDelete {
			delete(next.records, string(ev.Kv.Key))
			continue
		}
		next.records[string(ev.Kv.Key)] = r.parse(ev.Kv)
	}
	return next
}

// reached moves the revision up without a change of records.
func (r replica) reached(rev int64) replica {
	r.rev = max(r.rev, rev)
	return r
}

// differences counts the keys that differ between two copies.
func (r replica) differences(o replica) int {
	n := 0
	for k, a := range r.records {
		if b, ok := o.records[k]; !ok || a.mod != b.mod || !bytes.Equal(a.raw, b.raw) {
			n++
		}
	}
	for k := range o.records {
		if _, ok := r.records[k]; !ok {
			n++
		}
	}
	return n
}

// nodes are the records that can be read, by id, with what operators want.
func (r replica) nodes() []control.Node {
	out := make([]control.Node, 0, len(r.records))
	cordons := map[im.NodeID]string{}
	for _, rec := range r.records {
		switch {
		case !rec.ok:
		case rec.kind == recordNode:
			out = append(out, rec.node)
		case rec.kind == recordCordon:
			cordons[rec.order.Node] = rec.order.Reason
		}
	}
	for i := range out {
		out[i].Cordon = cordons[out[i].ID]
	}
	return byID(out)
}

// drain is the order to stop that an operator gave to a node.
func (r replica) drain(prefix string, id im.NodeID) (order, bool) {
	rec, ok := r.records[prefix+string(id)+drainSuffix]
	return rec.order, ok && rec.ok
}

// take makes a copy that has a batch of a feed, and the events that led to it;
// none if the batch holds all records.
func (r replica) take(prefix string, b control.Batch) (replica, []*clientv3.Event) {
	if b.Full {
		kvs := make([]*mvccpb.KeyValue, 0, len(b.Records))
		for _, one := range b.Records {
			kvs = append(kvs, keyValue(prefix, one))
		}
		next := replicaOf(r.read, b.Revision, b.Cluster, kvs)
		next.history = r.history
		return next, nil
	}
	events := make([]*clientv3.Event, 0, len(b.Records))
	for _, one := range b.Records {
		ev := &clientv3.Event{Type: clientv3.EventTypePut, Kv: keyValue(prefix, one)}
		if one.Gone {
			ev.Type = clientv3.EventTypeDelete
		}
		events = append(events, ev)
	}
	return r.apply(events).reached(b.Revision), events
}

func keyValue(prefix string, r control.Record) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: []byte(prefix + r.Key), Value: r.Value, CreateRevision: r.Created, ModRevision: r.Revision, Version: r.Version, Lease: r.Lease}
}

// verdict says what to do with a full read.
type verdict int

const (
	takeIt   verdict = iota
	ignoreIt         // it is from a member that lags behind what we have
	rebuild          // etcd has another or an older history
)

// stubborn is how many reads in a row must be behind before etcd is believed to
// have gone back.
const stubborn = 3

// judge compares a read at (rev, cluster) with the copy. behind is how many
// reads in a row were behind before it.
func (r replica) judge(rev int64, cluster uint64, behind int) verdict {
	switch {
	case r.cluster == 0:
		return takeIt // nothing is known yet
	case cluster != r.cluster:
		return rebuild
	case rev >= r.rev:
		return takeIt
	case behind+1 >= stubborn:
		return rebuild
	}
	return ignoreIt
}
