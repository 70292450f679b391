
# The names of held locks, where a name is expected.
function __fish_leasehold_names
    # A name with a backslash is written in another way than it is typed, one with a backtick may be code, and one that
    # begins with a dash is an option.
    leasehold ls --quiet --connect-timeout 1s 2>/dev/null | string match --invert --regex '^-|[\\\\`]'
end
complete -c leasehold -n "__fish_leasehold_using_subcommand show observe release" -f -a "(__fish_leasehold_names)"
complete -c leasehold -n "__fish_leasehold_using_subcommand run hold; and test (count (commandline -opc)) -eq 2" -f -a "(__fish_leasehold_names)"
