
# The names of held locks, where a name is expected.
_leasehold_with_names() {
    _leasehold "$@"
    local line=${COMP_LINE:0:COMP_POINT} words typed prefix name quoted
    read -ra words <<<"$line"
    if [[ $line == *[[:space:]] ]]; then words+=(''); fi
    ((${#words[@]} > 2)) && [[ ${words[1]} == @(run|hold|show|observe|release) ]] || return 0
    case ${words[-2]} in
        "${words[1]}" | -l | --lock | -n | --nonblock | --fair | -s | --shared | -v | --verbose | --json | --all | --once | --force | --yes) ;;
        *) return 0 ;;
    esac
    typed=${words[-1]}
    # Behind an open quote, what is inserted would be quoted twice, or not at all.
    if [[ $typed == -* || $typed == *[\'\"\\\$\`]* ]]; then return 0; fi
    # For bash a word begins behind each of these.
    prefix=${typed%"${typed##*[:=@<>|&;(]}"}
    COMPREPLY=()
    while IFS= read -r name; do
        quoted=$(printf %q "${name#"$prefix"}")
        # A name with a backslash is written in another way than it is typed, one with a backtick may be code, and one that
        # begins with a dash is an option.
        if [[ $name == "$typed"* && $name != *[\\\`]* && $name != -* && $quoted != *\$\'* ]]; then
            COMPREPLY+=("$quoted")
        fi
    done < <("$1" ls --quiet --connect-timeout 1s 2>/dev/null)
}

complete -F _leasehold_with_names -o bashdefault -o default leasehold
