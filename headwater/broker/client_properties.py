"""How to reach a broker: a file in the form that Kafka's own tools take with --command-config (`security.protocol=SASL_SSL`, …).

What decides how a connection is secured must be understood: a key of that kind which is not supported is an error. Other settings of
Kafka's clients have no effect here and are named by `ignored`. Values never appear in an error or a log: any may be a secret. A line of a
value that was not continued with a backslash looks like a key, so only what has the form of a key is named.
"""

import re
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from time import monotonic

import structlog

from headwater_core.errors import UsageError
from headwater_core.files import Fingerprint, fingerprint

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SUPPORTED = (
    "client.id",
    "request.timeout.ms",
    "sasl.jaas.config",
    "sasl.mechanism",
    "security.protocol",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.type",
    "username",
    "password",
)
_BINDING = ("sasl.", "security.", "ssl.", "username", "password")
REFUSED_S = 10.0  # before files that cannot be used are read again
_BLANKS = " \t\f"  # all that Java takes for a space
_KEY = re.compile(r"(?:\\.|[^\\ \t\f=:])*")
_NAME = re.compile(r"(?=.{1,80}\Z)[a-z0-9]+(?:\.[a-z0-9]+)*\Z")
_JAAS_OPTION = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientProperties:
    """security_protocol  one of PROTOCOLS
    mechanism  one of MECHANISMS, when it is a SASL protocol
    tls        checked when it was read; None for a protocol without it
    ignored    keys that have no effect here
    other_lines  so many lines are no property
    file       they come from; None where they do not
    """

    security_protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    client_id: str = "headwater"
    request_timeout_s: float = 10.0
    ignored: tuple[str, ...] = ()
    other_lines: int = 0
    file: "PropertiesFile | None" = field(default=None, repr=False, compare=False)

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol.startswith("SASL_")

    def current(self) -> "ClientProperties":
        """These, or what their file says by now: for a new connection."""
        return self if self.file is None else self.file.reload()


class PropertiesFile:
    """The file at `path`, and the certificates that it names, which may be replaced at any time. Safe to use from many threads.

    Raises UsageError, which names keys, never values.
    """

    def __init__(self, path: Path, setting: str) -> None:
        self._path, self._setting, self._lock = path, setting, threading.Lock()
        self._known, self.properties = self._load()
        self._refused: tuple[float, dict[Path, Fingerprint | None]] = 0.0, {}  # until when what is so is not looked at again

    def reload(self) -> ClientProperties:
        """Return what the files say now, or what they said when they could last be used."""
        with self._lock:
            found_now = {path: fingerprint(path) for path in self._known}
            if self._known == found_now or (monotonic() < self._refused[0] and self._refused[1] == found_now):
                return self.properties
            try:
                known, found = self._load()
                if found.security_protocol != self.properties.security_protocol:  # an empty file would be a connection without a password
                    raise UsageError(f"{self._setting}: {self._path}: security.protocol has changed, which takes a restart")
            except UsageError as error:
                self._refused = monotonic() + REFUSED_S, found_now
                log.error("client_properties_refused", reason=str(error), consequence="those that were loaded before stay in use")
            else:
                self._known, self.properties = known, found
                log.info("client_properties_reloaded", path=str(self._path))
            return self.properties

    def _load(self) -> tuple[dict[Path, Fingerprint | None], ClientProperties]:
        known = {self._path: fingerprint(self._path)}  # as each was before it is read
        values = load_properties(self._path, self._setting)
        for key in ("ssl.truststore.location", "ssl.keystore.location"):
            if key in values:
                known[Path(values[key])] = fingerprint(Path(values[key]))
        try:
            return known, replace(_checked(values), file=self)
        except UsageError as error:
            raise UsageError(f"{self._setting}: {self._path}: {error}") from None


def load_client_properties(path: Path | None, setting: str = "log.client_properties") -> ClientProperties:
    """Those in the file that `setting` names; of a plain connection when there is none.

    Raises UsageError, which names keys, never values.
    """
    return ClientProperties() if path is None else PropertiesFile(path, setting).properties


def load_properties(path: Path, setting: str) -> dict[str, str]:
    """Those in the file that `setting` names. Raises UsageError."""
    try:
        return {key: value.strip() for key, value in parse_properties(path.read_text("utf-8"))}
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{setting}: cannot read {path}: {why}") from None


def parse_properties(text: str) -> Iterator[tuple[str, str]]:
    """Key and value of each property. Source: java.util.Properties.load."""
    lines = iter(re.split(r"\r\n|\r|\n", text))  # splitlines would also cut a value at U+0085, U+2028 and others
    for line in lines:
        line = line.lstrip(_BLANKS)
        if not line or line[0] in "#!":
            continue
        while (len(line) - len(line.rstrip("\\"))) % 2:
            line = line[:-1] + next(lines, "").lstrip(_BLANKS)
        found = _KEY.match(line)
        assert found
        value = line[found.end() :].lstrip(_BLANKS)
        if value[:1] in ("=", ":"):
            value = value[1:].lstrip(_BLANKS)
        yield _unescaped(found[0]), _unescaped(value)


def _unescaped(text: str) -> str:
    found = re.sub(
        r"\\(?:u([0-9A-Fa-f]{4})|(.))", lambda found: chr(int(found[1], 16)) if found[1] else _ESCAPES.get(found[2], found[2]), text
    )
    return found.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")  # joins the two escapes of one character


def _checked(given: Mapping[str, str]) -> ClientProperties:
    if "ssl.keystore.key" in given:  # whatever the protocol: nobody should believe that it has an effect
        raise UsageError("ssl.keystore.key must be in a file: join it and the certificate chain, and name that in ssl.keystore.location")
    ignored, other_lines = [], 0
    for key, value in given.items():
        if key in SUPPORTED:
            if any("\ud800" <= each <= "\udfff" for each in value):
                raise UsageError(f"{key} has half of a surrogate pair, which is no character")
            continue
        if key.startswith(_BINDING):
            near, name = get_close_matches(key, SUPPORTED, n=1), repr(key) if _NAME.match(key) else "a key"
            raise UsageError(
                f"{name} is not supported{f'; did you mean {near[0]!r}?' if near else ''}. Supported are {', '.join(SUPPORTED)}"
            )
        if _NAME.match(key):
            ignored.append(key)
        else:
            other_lines += 1
    protocol = given.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise UsageError(f"security.protocol is none of {', '.join(PROTOCOLS)}")
    username, password, mechanism = "", "", ""
    if protocol.startswith("SASL_"):
        mechanism = given.get("sasl.mechanism", "").upper()
        if mechanism not in MECHANISMS:
            raise UsageError(f"sasl.mechanism must be one of {', '.join(MECHANISMS)}")
        jaas = _jaas_options(given.get("sasl.jaas.config", ""))
        username = given.get("username", jaas.get("username", ""))
        password = given.get("password", jaas.get("password", ""))
        if not username or not password:
            raise UsageError("username and password are needed: in sasl.jaas.config, or as keys of these names")
    return ClientProperties(
        security_protocol=protocol,
        mechanism=mechanism,
        username=username,
        password=password,
        tls=_tls(given) if protocol.endswith("SSL") else None,
        client_id=given.get("client.id", "headwater"),
        request_timeout_s=_timeout_s(given.get("request.timeout.ms")),
        ignored=tuple(ignored),
        other_lines=other_lines,
    )


def _jaas_options(text: str) -> dict[str, str]:
    """`org…PlainLoginModule required username="a" password="b";`. Source: javax.security.auth.login.Configuration."""
    found = {}
    for option in _JAAS_OPTION.finditer(text):
        quoted = option[2] if option[2] is not None else option[3]
        found[option[1]] = option[4] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
    return found


def _timeout_s(text: str | None) -> float:
    if text is None:
        return 10.0
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and 1 <= int(text) <= 600_000):
        raise UsageError("request.timeout.ms is no number of milliseconds up to ten minutes")
    return int(text) / 1000


def _tls(given: Mapping[str, str]) -> ssl.SSLContext:
    """The system's certificate authorities count where no truststore is given, as in Kafka's clients."""
    for store in ("keystore", "truststore"):
        kind = given.get(f"ssl.{store}.type", "JKS").upper()
        if any(f"ssl.{store}.{part}" in given for part in ("location", "certificates", "certificate.chain")) and kind != "PEM":
            raise UsageError(
                f"ssl.{store}.type must be PEM; keytool -exportcert -rfc or openssl pkcs12 writes a {store} of another type so"
            )
    context = ssl.create_default_context()
    algorithm = given.get("ssl.endpoint.identification.algorithm", "https").lower()
    if algorithm not in ("", "https"):
        raise UsageError("ssl.endpoint.identification.algorithm is https, or empty: then the broker's name is not checked")
    context.check_hostname = algorithm == "https"
    key = "ssl.truststore.certificates"
    try:
        if "ssl.truststore.location" in given:
            key = "ssl.truststore.location"
            context = _trusting_only(context, cafile=given[key])
        elif key in given:
            context = _trusting_only(context, cadata=given[key])
        if "ssl.keystore.location" in given:
            key = "ssl.keystore.location"
            context.load_cert_chain(given[key], password=lambda: given.get("ssl.key.password", ""))
        elif "ssl.keystore.certificate.chain" in given:
            raise UsageError("ssl.keystore.certificate.chain must be in a file with its key: name that in ssl.keystore.location")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise UsageError(f"{key} cannot be used: {type(error).__name__}") from None
    return context


def _trusting_only(like: ssl.SSLContext, **authorities: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = like.check_hostname
    context.load_verify_locations(**authorities)
    return context
