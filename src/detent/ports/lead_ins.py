"""The one sentence that may stand before a call in a text: it announces that its writer makes the call now, and says nothing else.

Rule: this is a list of what is allowed, not of what is forbidden: the openings ("I will ...", "Let me ...", "Calling ...", "Here is the call",
"Action") and every word after them. The sentence may also use the tool's name and names from the call. One unknown word, in any language,
and the sentence is not a lead-in. That costs a correction and runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection

LONGEST = 240
"""The longest possible lead-in, in characters."""
NOT_A_LEAD_IN = "the words before it are not one short sentence that announces it and ends in a colon"


def _any_of(*lines: str) -> str:
    """Return a pattern for any of these words; a `*` stands for any ending, a `_` for a space."""
    words = [word for line in lines for word in line.split()]
    return "|".join(re.escape(word).replace(r"\*", r"\w*").replace("_", " ") for word in words)


_NEGATIONS = _any_of(
    "no not never none nothing nobody neither nor cannot without unless instead except rather against unable impossible cancelled canceled",
    "avoid* refus* declin* reject* forbid* forbade prohibit* prevent* ignor* skip* deny denied denies denying",
    "nicht* kein* nie niemals nein ohne weder statt verboten abgelehnt niet geen nooit zonder inte ikke aldrig",
    "ne pas jamais aucun* rien sans non ni nunca jamás jamas ningún* ningun* nada tampoco sin mai senza nessun* não nao nem sem nenhum*",
    "bez не нет никогда нельзя без",
)
_QUESTION = re.compile("[?？¿؟;]")  # noqa: RUF001 - the last one is Greek
_QUOTED = re.compile(r"[\"“”„‟«»‹›「」『』《》]|(?<!\w)['‘’‚]|['‘’](?!\w)|^\s*[>#|]|</?[a-z!]|~~", re.IGNORECASE | re.MULTILINE)  # noqa: RUF001
_NEGATION = re.compile(rf"\b(?:{_NEGATIONS})\b|n['’]t\b|\bn['’](?=\w)|[不没沒別别勿未無无非莫]|ない|ません|않|안\s|말\s", re.IGNORECASE)  # noqa: RUF001
_NOW = r"(?: (?:now|first|just|then|also|next|quickly))*"
_WILL = _any_of("'ll _will 'm_going_to _am_going_to _shall _need_to _have_to _want_to 'd_like_to _would_like_to")
_ACT = _any_of("call use run make send execute invoke start issue do try perform")
_ACTING = _any_of("calling using running making sending executing invoking starting issuing trying performing")
_LOOK = _any_of("look check search query fetch get find see read list open compute calculate add retrieve load know consult browse")
_LOOKING = _any_of(
    "looking checking searching querying fetching getting finding reading listing opening computing calculating adding retrieving loading"
)
_SMALL = _any_of("the this that it these them a an my our one for up with in on at to into and now first next again")
_TOOLS = _any_of("tool tools function functions")  # alone, "Tool:" is who speaks
_WHENCE, _SHOWN = (
    _any_of("of from by"),
    _any_of("your you following below"),
)  # also used when reading something out to somebody
_CALL = _any_of("call calls action actions step steps request command invocation query json answer")
_THINGS = _any_of(
    "file files page pages site web website internet folder directory document database table code weather price prices date time name names",
    "number numbers value values list details data information info facts figure figures result results source sources today current latest sum total",
    "note notes calendar map area population country city temperature order orders customer user account balance status",
)
_WHICH = _any_of("the my a final next first second tool function json api action required necessary requested actual")
_HERE = (
    rf"here(?:'s|\s+(?:is|are|it\s+is|you\s+go|we\s+go))?(?:\s+(?:{_WHICH}))*(?:\s+(?:{_CALL}))?"
    r"(?:\s+(?:for\s+(?:you|this|that|it)|(?:you|i)\s+need|i\s+make|now|below))?"
)
_ACTS, _SEES = rf"(?:\s+(?:{_SMALL}|{_WHENCE}|{_SHOWN}|{_CALL}|{_TOOLS}|NAMES))*", rf"(?:\s+(?:{_SMALL}|{_THINGS}|NAMES))*"
_LOOKS = rf"(?:\s+(?:{_SMALL}|{_WHENCE}|{_THINGS}|NAMES))*"
_OWN = (
    rf"(?:(?:i|we)(?:{_WILL})|let\s+(?:me|us)|let's){_NOW}\s+(?:(?:{_ACT}){_ACTS}|(?:{_LOOK}|NAMES){_LOOKS})",
    rf"(?:i|we){_NOW}\s+(?:{_ACT}){_ACTS}",  # "I see on the page" describes the page
    rf"(?:i(?:'m|\s+am){_NOW}\s+)?(?:(?:{_ACTING}){_ACTS}|(?:{_LOOKING}){_SEES})",  # so does "reading from the page"
    _HERE,
    rf"(?:(?:{_WHICH})\s+)*(?:{_CALL})(?:\s+(?:call|now|\d{{1,2}}))?",
)
_ABROAD = (  # German, French, Spanish, Chinese
    r"(?:ich\s+(?:rufe|nutze|verwende|benutze)|jetzt\s+(?:rufe|nutze|verwende)\s+ich)(?:\s+(?:jetzt|nun|zuerst|dazu|dafür|das|die|den|werkzeug|tool|funktion|auf|NAMES))*",
    r"(?:hier\s+ist\s+der\s+)?(?:nächster\s+)?(?:werkzeug|funktions)?aufruf",
    r"(?:j'(?:appelle|utilise)|je\s+vais\s+(?:appeler|utiliser))(?:\s+(?:maintenant|d'abord|l'outil|la|le|fonction|outil|NAMES))*|(?:voici\s+l')?appel",
    r"(?:(?:ahora|primero)\s+)?(?:llamo|uso|voy\s+a\s+(?:llamar|usar))(?:\s+(?:ahora|a|la|el|herramienta|función|NAMES))*|(?:aquí\s+está\s+la\s+)?llamada",
    r"(?:好的[，,])?(?:现在)?我?(?:现在|先|来|将|会|要|需要)*(?:调用|使用|查询|搜索|读取|执行)(?:一下)?(?:这个|该)?(?:工具|函数)?",  # noqa: RUF001
)
_YES = r"(?:(?:sure|ok|okay|alright|all right|certainly|of course|great|right|yes|got it|understood|absolutely|well)\b[!,.]?\s*)?"
_FIRST = r"(?:(?:first(?: of all)?|firstly|second|secondly|third|next|now|then|so|therefore|finally)\b,?\s*)*"
_PURPOSE = rf"(?:(?:in\s+order\s+)?to\s+(?:answer|{_LOOK}|{_ACT}){_LOOKS},\s+)?"
_OPENING = rf"(?=\S){_YES}{_FIRST}{_PURPOSE}(?:{'|'.join((*_OWN, *_ABROAD))})?"
_PROPER = re.compile(r"(?<![\w'])(?:[A-Z]|\d)[\w./-]*")

_TO_A_COLON = re.compile(r"(?:(?!```)[^\n{}\[\]<>|:：])*[:：][*_]*\s*")  # noqa: RUF001
_CODE = re.compile(r"`([\w.-]+)`|[*_]{2}")


def doubt_about(text: str) -> str:
    """Return what in the text around a call shows that the call is not requested: a question, a quotation or a negation; "" if nothing does."""
    bare = _CODE.sub(r"\1", text)
    if _QUESTION.search(bare):
        return "there is a question beside it"
    if _QUOTED.search(bare) or "`" in bare:
        return "there is a quotation mark or other markup beside it"
    return "there is a negation beside it" if negates(bare) else ""


def negates(text: str) -> bool:
    """Whether a text contains a negating word or sign."""
    return _NEGATION.search(text) is not None


def leads_in(text: str, names: Collection[str], call: str = "") -> bool:
    """Whether a text is one short sentence that announces a call of a tool with one of these names and ends in a colon. `call` is the call."""
    bare = " ".join(_CODE.sub(r"\1", text).replace("’", "'").strip(" \t\r\n*_").split())  # noqa: RUF001
    if len(bare) > LONGEST or "\n" in text.strip() or bare[-1:] not in (":", "：") or doubt_about(text):  # noqa: RUF001
        return False
    said = bare[:-1].strip()
    known = {part for name in names for part in (name, *re.split(r"[\W_]+", name)) if part}
    known |= {word for word in _PROPER.findall(said) if word in call}
    named = "|".join(["(?!)", *map(re.escape, sorted(known))])
    return re.fullmatch(_OPENING.replace("NAMES", named), said, re.IGNORECASE) is not None


def before_calls(text: str) -> list[int]:
    """Return the positions in a text where a call may begin: its start, and after each colon in its first line that can end a lead-in."""
    places = [0]
    while places[-1] < LONGEST and (found := _TO_A_COLON.match(text, places[-1])) is not None:
        places.append(found.end())
    return places
