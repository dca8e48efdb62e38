"""Scripts that complete the options of a program in a shell: names, choices and file names."""

import shlex

from onmt_lite.schema.option import Option
from onmt_lite.schema.program import Program

BASH = """\
# Completes @commands@ in bash.  In ~/.bashrc: source <(@command@ -print_completion bash)
@function@() {
    local word=${COMP_WORDS[COMP_CWORD]} option= i IFS=$'\\n'
    if [[ $word == = ]]; then word=; fi  # --beam_size= is two words to bash
    for ((i = COMP_CWORD - 1; i > 0; i--)); do
        if [[ ${COMP_WORDS[i]} == -[a-z-]* ]]; then
            option=${COMP_WORDS[i]#-}
            option=${option#-}
            break
        fi
    done
    COMPREPLY=()
    case $word in
    --*) COMPREPLY=($(compgen -P -- -W "$(printf '%s\\n' @names@)" -- "${word#--}")) ;;
    -*) COMPREPLY=($(compgen -P - -W "$(printf '%s\\n' @names@)" -- "${word#-}")) ;;
    *)
        case $option in
@choices@
        @paths@)
            compopt -o filenames 2> /dev/null  # older ones lack it
            COMPREPLY=($(compgen -f -- "$word"))
            ;;
        esac
        ;;
    esac
}
complete -F @function@ @commands@
"""
BASH_CHOICES = """\
        @name@) COMPREPLY=($(compgen -W "$(printf '%s\\n' @words@)" -- "$word")) ;;"""

ZSH = """\
#compdef @commands@
# Completes @commands@ in zsh.
# In ~/.zshrc, after compinit: source <(@command@ -print_completion zsh)
@function@() {
    local option= i
    for ((i = CURRENT - 1; i > 1; i--)); do
        if [[ $words[i] == -[a-z-]* ]]; then
            option=${${words[i]#-}#-}
            break
        fi
    done
    if [[ $PREFIX == -* ]]; then
        local -a names=(@described@)
        if [[ $PREFIX == --* ]]; then names=(${names/#-/--}); fi
        _describe -o option names
        return
    fi
    case $option in
@choices@
    @paths@) _files ;;
    esac
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    @function@ "$@"
else
    compdef @function@ @commands@
fi
"""
ZSH_CHOICES = """\
    @name@) compadd -- @words@ ;;"""


def completion(shell: str, program: Program) -> str:
    """A script for `shell`, bash or zsh, that completes the options of the program."""
    commands, options = program.commands, program.options
    script, line = (BASH, BASH_CHOICES) if shell == "bash" else (ZSH, ZSH_CHOICES)
    choices = [
        _fill(line, name=option.name, words=shlex.join(_words(option)))
        for option in options.values()
        if _words(option)
    ]
    return _fill(
        script,
        function=f"_{commands[0]}",
        command=commands[0],
        commands=" ".join(commands),
        names=" ".join(options),
        described=" ".join(map(_described, options.values())),
        choices="\n".join(choices),
        paths=" | ".join(option.name for option in options.values() if option.is_path),
    )


def _words(option: Option) -> tuple[str, ...]:
    return ("true", "false") if option.kind is bool else option.choices


def _described(option: Option) -> str:
    """One line, as zsh shows it beside the name."""
    text = option.help.partition(";")[0].partition(":")[0]
    return shlex.quote(f"-{option.name}:{text}")


def _fill(text: str, **values: str) -> str:
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text
