package cmd

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/pkg/config"
)

func newConfig(a *app) *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Check, show and document the configuration"}
	c.AddCommand(newConfigCheck(a), newConfigShow(a), newConfigDocs(a))
	return c
}

func newConfigCheck(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "check",
		Short: "Check a configuration and say what is wrong with it",
		Long: `Check reads the file, the IMD_* variables and the flags just as serve does, and
validates the result for the chosen roles. It opens no connection.

Exit status: 0 if the configuration is good, 78 if it is not.`,
		Example: "  imd config check --config imd.yaml",
		Args:    cobra.NoArgs,
	}
	s := addSettings(a, c)
	c.RunE = func(*cobra.Command, []string) error {
		l, err := s.load()
		if err != nil {
			return err
		}
		warnings := l.values.Warnings
		if warnings == nil {
			warnings = []string{}
		}
		return a.printer().data(map[string]any{"ok": true, "roles": l.roles, "warnings": warnings}, func(w io.Writer) {
			for _, text := range warnings {
				fmt.Fprintf(w, "warning: %s\n", text)
			}
			fmt.Fprintf(w, "ok: roles %s\n", strings.Join(l.roles, ", "))
		})
	}
	return c
}

func newConfigShow(a *app) *cobra.Command {
	var origin bool
	c := &cobra.Command{
		Use:     "show",
		Short:   "Show every key with the value that serve would use",
		Long:    "Show prints all keys. Secrets are masked. With --origin it says what set each value.",
		Example: "  imd config show --origin\n  imd config show -o json",
		Args:    cobra.NoArgs,
	}
	s := addSettings(a, c)
	c.Flags().BoolVar(&origin, "origin", false, "say what set each value: default, a line of the file, a variable or a flag")
	c.RunE = func(*cobra.Command, []string) error {
		l, err := s.load()
		if err != nil {
			return err
		}
		all := l.values.All()
		return a.printer().data(map[string][]config.Value{"settings": all}, func(w io.Writer) {
			var rows [][]string
			for _, v := range all {
				row := []string{v.Key, v.Value}
				if origin {
					where := v.Where
					if where == "" {
						where = v.Source
					}
					row = append(row, where)
				}
				rows = append(rows, row)
			}
			heading := "KEY VALUE"
			if origin {
				heading += " ORIGIN"
			}
			table(w, heading, rows)
		})
	}
	return c
}

// documented is a key as `config docs -o json` prints it.
type documented struct {
	Key     string `json:"key"`
	Type    string `json:"type"`
	Default string `json:"default"`
	Env     string `json:"env"`
	Doc     string `json:"doc"`
}

func newConfigDocs(a *app) *cobra.Command {
	var example bool
	c := &cobra.Command{
		Use:     "docs",
		Short:   "Print the reference of all keys, or an example file",
		Example: "  imd config docs\n  imd config docs --example > imd.yaml",
		Args:    cobra.NoArgs,
	}
	c.Flags().BoolVar(&example, "example", false, "print a file with every key and its default")
	c.RunE = func(*cobra.Command, []string) error {
		sch, err := schema(a.specs)
		if err != nil {
			return err
		}
		if a.format != asJSON && example {
			return sch.WriteExample(a.out)
		}
		if a.format != asJSON {
			return sch.WriteReference(a.out)
		}
		keys := []documented{}
		for _, l := range sch.Leaves() {
			keys = append(keys, documented{l.Key, l.Type, config.Text(l.Default), l.Env, l.Doc})
		}
		return a.printer().data(map[string]any{"keys": keys}, nil)
	}
	return c
}
