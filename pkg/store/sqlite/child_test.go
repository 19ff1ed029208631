package sqlite

func asChild() bool { return false }
