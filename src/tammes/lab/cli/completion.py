"""Shell completion for bash, zsh and fish: a script with every command and its flags."""

from collections.abc import Mapping, Sequence

SHELLS = ("bash", "zsh", "fish")

BASH = """\
_tammes() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" words=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{commands}"
    elif [[ "$current" == -* ]]; then
        case "${{COMP_WORDS[1]}}" in
{cases}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _tammes tammes
"""

ZSH = "#compdef tammes\nautoload -Uz bashcompinit && bashcompinit\n" + BASH


def completion(shell: str, commands: Mapping[str, tuple[str, Sequence[str]]]) -> str:
    """The completion script of `shell` for `commands`, each a name with its summary and options."""
    if shell == "fish":
        return "".join(_fish(name, summary, options) for name, (summary, options) in commands.items())
    cases = [f'            {name}) words="{" ".join(options)}" ;;' for name, (_, options) in commands.items()]
    script = ZSH if shell == "zsh" else BASH
    return script.format(commands=" ".join(commands), cases="\n".join(cases))


def _fish(name: str, summary: str, options: Sequence[str]) -> str:
    lines = [f"complete -c tammes -n __fish_use_subcommand -a {name} -d {_quoted(summary)}"]
    for option in options:
        lines.append(f'complete -c tammes -n "__fish_seen_subcommand_from {name}" -l {option[2:]}')
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
