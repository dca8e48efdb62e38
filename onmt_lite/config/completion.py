"""Scripts that complete the options of a program in a shell: names, choices and file names."""

import shlex

from onmt_lite.config.option import Option
from onmt_lite.config.program import Program

BASH = """\
# Completes options of @programs@.  In ~/.bashrc: source <(@command@ -print_completion bash)
@function@() {
    local names="@names@"
    local word=${COMP_WORDS[COMP_CWORD]} option= choices= i
    if [[ $word == = ]]; then word=; fi  # --beam_size= is two words to bash
    for ((i = COMP_CWORD - 1; i > 0; i--)); do
        if [[ ${COMP_WORDS[i]} == -[a-z-]* ]]; then
            option=${COMP_WORDS[i]#-}
            option=${option#-}
            break
        fi
    done
    case $option in
    @choices@
    esac
    COMPREPLY=()
    if [[ $word == --* ]]; then
        COMPREPLY=($(compgen -P -- -W "$names" -- "${word#--}"))
    elif [[ $word == -* ]]; then
        COMPREPLY=($(compgen -P - -W "$names" -- "${word#-}"))
    elif [[ $choices == FILES ]]; then
        local IFS=$'\\n'  # names may hold spaces
        compopt -o filenames 2> /dev/null || true  # bash 3 has none
        COMPREPLY=($(compgen -f -- "$word"))
    elif [[ -n $choices ]]; then
        COMPREPLY=($(compgen -W "$choices" -- "$word"))
    fi
}
complete -F @function@ @commands@
"""

ZSH = """\
#compdef @commands@
# Completes options of @programs@.
# In ~/.zshrc, after compinit: source <(@command@ -print_completion zsh)
@function@() {
    local option= choices= i
    local -a names=(
        @described@
    )
    for ((i = CURRENT - 1; i > 1; i--)); do
        if [[ $words[i] == -[a-z-]* ]]; then
            option=${${words[i]#-}#-}
            break
        fi
    done
    case $option in
    @choices@
    esac
    if [[ $PREFIX == --* ]]; then
        names=(-$^names)
        _describe -o option names
    elif [[ $PREFIX == -* ]]; then
        _describe -o option names
    elif [[ $choices == FILES ]]; then
        _files
    elif [[ -n $choices ]]; then
        compadd -- ${=choices}
    fi
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    @function@ "$@"
else
    compdef @function@ @commands@
fi
"""


def completion(shell: str, program: Program) -> str:
    """A script for `shell`, bash or zsh, that completes the options of the program."""
    options = program.options.values()
    by_choices: dict[str, list[str]] = {}
    for option in options:
        by_choices.setdefault(_choices(option), []).append(option.name)
    values = {
        "programs": " and ".join(program.commands),
        "commands": " ".join(program.commands),
        "command": program.commands[0],
        "function": f"_{program.commands[0]}",
        "names": " ".join(program.options),
        "described": "\n        ".join(map(_described, options)),
        "choices": "\n    ".join(
            f'{" | ".join(names)}) choices="{choices}" ;;'
            for choices, names in by_choices.items()
            if choices
        ),
    }
    script = BASH if shell == "bash" else ZSH
    for name, value in values.items():
        script = script.replace(f"@{name}@", value)
    return script.rstrip("\n")


def _choices(option: Option) -> str:
    """The values to offer, FILES for the names of files, "" for none."""
    if option.kind is bool:
        return "true false"
    return "FILES" if option.is_path else " ".join(option.choices)


def _described(option: Option) -> str:
    """The option with the beginning of its help, as zsh shows it."""
    text = option.help.partition(";")[0].partition(":")[0]
    return shlex.quote(f"-{option.name}:{text}")
