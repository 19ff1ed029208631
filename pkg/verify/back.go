package verify

// back is I9: what a device has of a conversation never gets less, also across
// connections, unless it was told to begin anew because of another data_epoch.
func (c *check) back() {
	list, _ := c.stories()
	for i := range list {
		t := tide{}
		for v := range c.told(&list[i]) {
			if v.kind == viewOpen || v.kind == viewHave || v.kind == viewShow || v.kind == viewResync {
				c.inv.Checked++
			}
			mark := t.mark
			if what := t.step(v); what != "" {
				c.fail(func() []Ref {
					if mark == nil {
						return []Ref{c.viewRef(v)}
					}
					return []Ref{c.viewRef(mark), c.viewRef(v)}
				}, "%s", what)
			}
		}
	}
}

// tide follows what a device has of a conversation.
type tide struct {
	have    int64
	shown   int64
	mark    *view // what made have what it is
	resumed bool  // nothing was shown since the last Connect, Open or Have
	epoch   name
	met     bool // the device connected before
}

// step takes the next record and says what is wrong with it.
func (t *tide) step(v *view) string {
	wrong := ""
	switch v.kind {
	case viewConnect:
		if !t.met {
			t.epoch, t.met = v.word, true
		}
		t.resumed = true
	case viewResync:
		if v.word != 0 && v.word == t.epoch {
			wrong = "told to begin anew for the data_epoch that it had"
		}
		*t = tide{epoch: v.word, met: true, mark: v}
	case viewOpen, viewHave:
		if v.seq < t.have {
			wrong = "took up a conversation below what it had"
		}
		t.raise(v)
		t.resumed = true
	case viewShow:
		if v.seq <= t.have && (t.resumed || v.seq > t.shown) {
			wrong = "showed an entry at or below what it had when it resumed"
		}
		t.shown = max(t.shown, v.seq)
		t.raise(v)
		t.resumed = false
	}
	return wrong
}

func (t *tide) raise(v *view) {
	if v.seq >= t.have {
		t.have, t.mark = v.seq, v
	}
}
