package cmd

// judge runs the judge over the history of the run. What it prints goes to
// standard error where standard output holds the result as JSON.
func (f *benchFlags) judge() error {
	a := *f.app
	if a.format == asJSON {
		a.out, a.format = a.errOut, human
	}
	v := &verifyFlags{app: &a}
	v.opt.Share, v.each = 0.95, 1
	return v.run(f.record)
}
