package verify

// authorisation is I17: a device shows only what its user may see. A stranger
// to a conversation may see nothing of it.
func (c *check) authorisation() {
	visible := c.visible()
	list, _ := c.stories()
	for i := range list {
		s := &list[i]
		spans := visible[[2]name{s.user, s.conv}]
		for _, at := range s.own {
			v := &c.views[at]
			if v.kind != viewShow {
				continue
			}
			if c.inv.Checked++; maySee(spans, v.seq) {
				continue
			}
			what := "outside what its user may see"
			if len(spans) == 0 {
				what = "to a stranger"
			}
			c.fail(func() []Ref {
				list := []Ref{c.viewRef(v)}
				for i := range spans[:min(len(spans), 4)] {
					list = append(list, c.spanRef(&spans[i]))
				}
				return list
			}, "seq %d of %s was shown %s", v.seq, c.names.text(v.conv), what)
		}
	}
}
