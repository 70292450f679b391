# The names of held locks, where a name is expected.
_leasehold_names() {
    local -a expl names
    # A name with a backslash is written in another way than it is typed, one with a backtick may be code, and one that
    # begins with a dash is an option.
    names=(${${(f)"$(leasehold ls --quiet --connect-timeout 1s 2>/dev/null)"}:#(-*|*[\\\`]*)})
    _wanted names expl lock compadd -a names
}

