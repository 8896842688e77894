#!/bin/sh
# Runs as root in the booted clean Debian: the commands of docs/install.md in its order, then what must hold besides.
# Each line that begins with -- names what follows; the first command that fails ends it, and the journal is shown.
set -eu

work=/root/try
mkdir -p $work
password="Planted-$(od -An -N6 -tx1 /dev/urandom | tr -d ' ')"
printf '%s\n' "$password" >$work/password

ending() {
    code=$?
    if [ $code -ne 0 ]; then
        echo "== failed with $code; the services:"
        systemctl --no-pager --lines 0 status 'rackwright-*' sim-redfish sim-ipmi || true
        echo "== the journal:"
        journalctl --no-pager --lines 150 --output short-monotonic || true
    fi
}
trap ending EXIT

# has TEXT COMMAND…: the command succeeds, and what it says contains the text.
has() {
    text=$1
    shift
    if ! said=$("$@" 2>&1); then
        echo "failed: $*: $said"
        return 1
    fi
    case $said in
    *"$text"*) ;;
    *)
        echo "no '$text' in what '$*' said: $said"
        return 1
        ;;
    esac
}

# soon TEXT COMMAND…: the same within half a minute.
soon() {
    for _ in $(seq 60); do
        if has "$@" >/dev/null; then
            return 0
        fi
        sleep 0.5
    done
    has "$@"
}

is_gone() {
    if [ -e "$1" ] || [ -L "$1" ]; then
        echo "$1 is left over"
        return 1
    fi
}

# systemd-nspawn lays a boot id of its own over the kernel's; a service with ProtectProc= has a fresh /proc and sees the
# kernel's. On a host there is but one.
umount /proc/sys/kernel/random/boot_id 2>/dev/null || true

echo "-- the control plane started with the system, the agent waits to be joined"
soon active systemctl is-active rackwright-control-plane
has enabled systemctl is-enabled rackwright-control-plane
has enabled systemctl is-enabled rackwright-agent
has "ConditionResult=no" systemctl show --property ConditionResult rackwright-agent
has "rackwright 0" rackwright --version
has "nodes" bash -c '. /usr/share/bash-completion/completions/rackwright && _RACKWRIGHT_COMPLETE=bash_complete \
    COMP_WORDS="rackwright no" COMP_CWORD=1 rackwright'

echo "-- first login, on the control plane's own host"
rackwright control-plane token create --name first-operator >$work/token 2>/dev/null
has "logged in" rackwright login http://127.0.0.1:8440 --token-file $work/token
has "none" rackwright nodes list

echo "-- the documents and examples that came along: each profile is taken"
has "# Installing Rackwright" cat /usr/share/doc/rackwright/docs/install.md
for verb in commission deploy release rescue remediate recover; do
    has "" rackwright profiles create /usr/share/doc/rackwright/examples/profiles/$verb.yaml
    has "$verb" rackwright profiles list
done
has "dhcp-range" cat /usr/share/doc/rackwright/examples/dnsmasq/rackwright.conf

echo "-- control plane: names and a certificate"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=control.example \
    -addext subjectAltName=DNS:control.example -keyout $work/api.key -out $work/api.pem 2>/dev/null
install -o rackwright-control-plane -g rackwright-control-plane -m 0400 $work/api.key /etc/rackwright/api.key
install -m 0644 $work/api.pem /etc/rackwright/api.pem
sed -i -e 's|^# names = .*|names = ["control.example"]|' -e 's|^# listen = "127.0.0.1:8440"|listen = "0.0.0.0:8440"|' \
    -e 's|^# \(tls_[a-z]* = \)|\1|' /etc/rackwright/control-plane.toml
systemctl restart rackwright-control-plane
has "API on port 8440" systemctl show --property StatusText rackwright-control-plane

echo "-- a login from elsewhere: by the certificate's fingerprint, and by its CA"
pin=$(openssl x509 -in $work/api.pem -noout -fingerprint -sha256 | sed 's/.*=//')
has "logged in" rackwright login https://control.example:8440 --pin "$pin" --token-file $work/token
has "none" rackwright nodes list
has "logged in" rackwright login https://control.example:8440 --ca /etc/rackwright/api.pem --token-file $work/token
has "none" rackwright nodes list

echo "-- the agent joins, and its service starts"
rackwright control-plane join-token create --site lab --create-site >$work/join-token 2>/dev/null
has "joined as agent_" sh -c "rackwright agent join wss://control.example:8443 - <$work/join-token"
systemctl start rackwright-agent
soon StatusText=connected systemctl show --property StatusText rackwright-agent
soon "connected:     since" rackwright agent status
has "already" sh -c "! rackwright agent join wss://control.example:8443 - <$work/join-token"

echo "-- two BMCs, and the password for them"
systemd-run --quiet --unit sim-redfish rackwright simulate redfish --port 9443 --password-file $work/password
systemd-run --quiet --unit sim-ipmi rackwright simulate ipmi --port 9623 --password-file $work/password
has "is set" sh -c "rackwright agent credentials set lab/bmc --user admin --stdin <$work/password"
soon "is good" rackwright agent credentials check lab/bmc --address https://127.0.0.1:9443 --tls none
soon "is good" rackwright agent credentials check lab/bmc --address ipmi://127.0.0.1:9623

echo "-- first nodes: power off and on, read back from the BMC itself"
rackwright nodes create r1-u1 --site lab --address https://127.0.0.1:9443 --credential-ref lab/bmc >/dev/null
rackwright nodes create r1-u2 --site lab --address ipmi://127.0.0.1:9623 --credential-ref lab/bmc >/dev/null
drive() {
    for node in r1-u1 r1-u2; do
        for state in off on; do
            has "changed   yes" rackwright invoke $node power.setPower "action=$state"
            has "state  $state" rackwright invoke $node power.getPower
            case $node in
            r1-u1) address=https://127.0.0.1:9443 ;;
            r1-u2) address=ipmi://127.0.0.1:9623 ;;
            esac
            # Directly, past the control plane and the agent.
            has "state  $state" rackwright bmc invoke power.getPower --address $address --user admin \
                --password-file $work/password --verify none
        done
    done
}
drive
# The certificate seen first; however many blanks the table has.
has "tls sha256:" sh -c 'rackwright nodes get r1-u1 | tr -s " "'

echo "-- a restarted agent goes on, and so does one that was killed"
systemctl restart rackwright-agent
soon "connected:     since" rackwright agent status
drive
before=$(systemctl show --value --property MainPID rackwright-agent)
kill -9 "$before"
soon "NRestarts=1" systemctl show --property NRestarts rackwright-agent
soon "connected:     since" rackwright agent status
drive

echo "-- a restarted control plane finds its agents again"
systemctl restart rackwright-control-plane
soon "state  on" rackwright invoke r1-u1 power.getPower

echo "-- a faulty configuration stops the agent with a clear word, and the repaired one starts it"
cp -p /etc/rackwright/agent.toml $work/kept.toml
echo 'hold = 1' >>/etc/rackwright/agent.toml
systemctl restart rackwright-agent || true
soon "failed" sh -c 'systemctl is-active rackwright-agent || true'
has "agent.toml: limits.hold" journalctl --no-pager --unit rackwright-agent
cp -p $work/kept.toml /etc/rackwright/agent.toml
systemctl reset-failed rackwright-agent
systemctl start rackwright-agent
soon "connected:     since" rackwright agent status

# drop_in SERVICE LINE…: what systemctl edit would write.
drop_in() {
    mkdir -p "/etc/systemd/system/$1.service.d"
    printf '[Service]\n%s\n' "$2" >"/etc/systemd/system/$1.service.d/override.conf"
    systemctl daemon-reload
    systemctl restart "$1"
}

echo "-- the vault's key as a systemd credential"
systemctl stop rackwright-agent
mv /var/lib/rackwright-agent/vault.key /etc/rackwright/vault.key
chown root:root /etc/rackwright/vault.key
sed -i 's|^# key_file = "".*|key_file = "/etc/rackwright/vault.key"|' /etc/rackwright/agent.toml
drop_in rackwright-agent "LoadCredential=vault.key:/etc/rackwright/vault.key"
soon "state  on" rackwright invoke r1-u1 power.getPower
has "is set" sh -c "rackwright agent credentials set lab/bmc --user admin --stdin <$work/password"
has "state  on" rackwright invoke r1-u1 power.getPower

echo "-- the same, sealed"
systemd-creds --quiet encrypt --name=vault.key /etc/rackwright/vault.key /etc/rackwright/vault.key.cred
rm /etc/rackwright/vault.key
drop_in rackwright-agent "LoadCredentialEncrypted=vault.key:/etc/rackwright/vault.key.cred"
soon "state  on" rackwright invoke r1-u1 power.getPower
has "is set" sh -c "systemd-run --quiet --pipe --wait \
    --property LoadCredentialEncrypted=vault.key:/etc/rackwright/vault.key.cred \
    rackwright agent credentials set lab/bmc --user admin --stdin <$work/password"
has "state  on" rackwright invoke r1-u1 power.getPower

echo "-- a service that hangs is started anew by the watchdog; one that does not hang stays"
for service in rackwright-control-plane rackwright-agent; do
    cp /etc/systemd/system/$service.service.d/override.conf $work/override 2>/dev/null || echo '[Service]' >$work/override
    echo WatchdogSec=2 >>$work/override
    mkdir -p /run/systemd/system/$service.service.d
    cp $work/override /run/systemd/system/$service.service.d/zz-watchdog.conf
    systemctl daemon-reload
    systemctl restart $service
    pid=$(systemctl show --value --property MainPID $service)
    sleep 5
    has "$pid" systemctl show --value --property MainPID $service
    kill -STOP "$pid"
    soon "Result=watchdog" sh -c "journalctl --no-pager --unit $service | sed -n 's/.*result .watchdog.*/Result=watchdog/p'"
    soon "NRestarts=1" systemctl show --property NRestarts $service
    rm -r /run/systemd/system/$service.service.d
    systemctl daemon-reload
    systemctl restart $service
done
soon "state  on" rackwright invoke r1-u1 power.getPower

echo "-- a backup while it serves"
has "holds the database" rackwright control-plane backup $work/backup.db

echo "-- an order by root while the control plane does not run leaves its database to it"
systemctl stop rackwright-control-plane
has "" rackwright control-plane token create --name second-operator
systemctl start rackwright-control-plane
soon "second-operator" rackwright tokens list

echo "-- every file in the state folders belongs to its service"
for service in rackwright-agent rackwright-control-plane; do
    # A link's owner does not matter, and only an operator's command takes the lock of the vault.
    foreign=$(find /var/lib/$service ! -user $service ! -type l ! -name vault.lock)
    [ -z "$foreign" ] || {
        echo "not of $service: $foreign"
        exit 1
    }
    has "700 $service" stat -c '%a %U' /var/lib/$service
done

echo "-- a removal keeps data, and the same package finds it again"
dpkg --remove rackwright-agent
has "inactive" sh -c 'systemctl is-active rackwright-agent || true'
[ -L /var/lib/rackwright-agent/identity/current ]
dpkg --install /srv/debs/rackwright-agent_*.deb
soon "connected:     since" rackwright agent status
drive

echo "-- an installation over a running system keeps what the administrator changed, and restarts the services"
before=$(systemctl show --value --property MainPID rackwright-control-plane)
dpkg --install /srv/debs/*.deb
[ "$before" != "$(systemctl show --value --property MainPID rackwright-control-plane)" ]
has "control.example" cat /etc/rackwright/control-plane.toml
soon "connected:     since" rackwright agent status
drive

echo "-- no password in a command line or an environment"
if grep --files-with-matches --binary-files=text "$password" /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null; then
    echo "it holds the planted password"
    exit 1
fi

echo "-- both services stop cleanly"
systemctl stop rackwright-agent rackwright-control-plane
for service in rackwright-agent rackwright-control-plane; do
    has "Result=success" systemctl show --property Result $service
    has "ExecMainStatus=0" systemctl show --property ExecMainStatus $service
done

echo "-- no password in the journal or on the disk, and no error but the one that was made"
journalctl --no-pager --output export >$work/journal
for place in $work/journal /var/lib/rackwright-agent /var/lib/rackwright-control-plane /etc /var/log /run/systemd; do
    if grep -r --binary-files=text --files-with-matches "$password" $place; then
        echo "it holds the planted password"
        exit 1
    fi
done
journalctl --no-pager --output cat --unit rackwright-agent --unit rackwright-control-plane >$work/ours
if grep -iE '"level": ?"(error|critical)"|Traceback|^error:' $work/ours | grep -v 'limits.hold'; then
    echo "errors in the journal"
    exit 1
fi

echo "-- a purge leaves nothing of ours"
systemctl stop sim-redfish sim-ipmi
rm /etc/rackwright/api.* /etc/rackwright/vault.key.cred
rm -r /etc/systemd/system/rackwright-agent.service.d
systemctl daemon-reload
dpkg --purge rackwright-agent rackwright-daemon rackwright-control-plane rackwright
for left in /opt/rackwright /etc/rackwright /usr/bin/rackwright /var/lib/rackwright-agent \
    /var/lib/rackwright-control-plane /var/lib/rackwright-daemon; do
    is_gone $left
done
left=$(find / -xdev -name '*rackwright*' ! -path '/root/*' ! -path '/srv/*' ! -path '/proc/*' ! -path '/sys/*' ! -path '/run/*')
[ -z "$left" ] || {
    echo "left over: $left"
    exit 1
}
has "" sh -c '! getent passwd rackwright-agent && ! getent passwd rackwright-control-plane'
has "" sh -c '! getent group rackwright-agent && ! getent group rackwright-control-plane'

echo "ALL DONE"
